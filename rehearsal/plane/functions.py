"""Lambda: the deployed zip, handler, environment, timeout and role, in warm worker processes."""

from __future__ import annotations

import json
import os
import threading
import time
import uuid
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rehearsal.plane.account import Account, Credentials
from rehearsal.plane.code import CodeStore
from rehearsal.plane.failures import EmulationGap
from rehearsal.plane.queues import Queues
from rehearsal.plane.worker import Worker
from rehearsal.processes import Processes
from rehearsal.timeline import Timeline


@dataclass(frozen=True, slots=True, kw_only=True)
class Invocation:
    """One finished invocation. `error` is '' for success, else a type: `TimedOut`, `Crashed` or the handler's own."""

    function: str
    at: float
    seconds: float
    error: str = ""
    message: str = ""
    result: Any = None
    event: Any = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """What decides a worker: another deployment of the same function is another worker."""

    name: str
    arn: str
    handler: str
    role: str
    timeout_s: int
    memory_mb: int
    runtime: str
    sha256: str
    environment: tuple[tuple[str, str], ...]


class Functions:
    """Invokes deployed functions. `endpoints` are the AWS_ENDPOINT_URL* that stand for the network.

    `sabotage` names a folder with a sitecustomize.py that every worker loads first: a fault from outside the product.
    `spoils` tells it which one.
    """

    def __init__(
        self,
        *,
        account: Account,
        processes: Processes,
        queues: Queues,
        timeline: Timeline,
        folder: Path,
        endpoints: dict[str, str],
    ) -> None:
        self.invocations: list[Invocation] = []
        self.invoked: Counter[str] = Counter()
        self.failed: Counter[str] = Counter()
        self.problems: list[str] = []
        self.sabotage: Path | None = None
        self.spoils = ""
        self.retry_s = 0.5
        self.endpoints = endpoints
        self._account = account
        self._processes = processes
        self._queues = queues
        self._timeline = timeline
        self._folder = folder
        self._code = CodeStore(account, folder / "code")
        self._idle: dict[Deployment, list[Worker]] = {}
        self._by_key: dict[str, Worker] = {}  # each worker has keys of its own: they tell who made a call
        self._lock = threading.Lock()

    def names(self) -> list[str]:
        """Every deployed function."""
        with self._account.lock:
            return [f.function_name for f in self._account.functions.list_functions()]

    def policy(self, name: str) -> dict[str, Any]:
        """The function's resource policy; empty when nobody was permitted."""
        with self._account.lock:
            function = self._account.functions.get_function(name)
            return {"Statement": list(function.policy.statements)}

    def log(self, name: str) -> Path:
        """Where the function's standard output and error are collected: its log group."""
        return self._folder / f"{name}.log"

    def log_text(self, name: str) -> str:
        """Everything that the function has written so far."""
        log = self.log(name)
        return log.read_text(errors="replace") if log.exists() else ""

    def invoke(self, name: str, event: Any) -> Invocation:
        """One synchronous invocation. A handler's error, a timeout or a crash is in the answer, not raised."""
        began, clock = time.time(), time.monotonic()
        answer = self._run(name, event)
        error = answer.get("error") or {}
        done = Invocation(
            function=name,
            at=began,
            seconds=time.monotonic() - clock,
            error=str(error.get("errorType", "")),
            message=str(error.get("errorMessage", "")),
            result=answer.get("result"),
            event=event,
        )
        with self._lock:
            self.invocations.append(done)
            self.invoked[name] += 1
            self.failed[name] += bool(done.error)
        return done

    def _run(self, name: str, event: Any) -> dict[str, Any]:
        deployment = self._deployment(name)
        worker = self._take(deployment)
        request = {
            "event": event,
            "request_id": str(uuid.uuid4()),
            "arn": deployment.arn,
            "timeout_s": deployment.timeout_s,
        }
        answer = worker.ask(json.dumps(request), deployment.timeout_s)
        if answer is None:
            timed_out = worker.alive()
            worker.end()
            message = f"Task timed out after {deployment.timeout_s}.00 seconds" if timed_out else "Runtime exited"
            return {"error": {"errorType": "TimedOut" if timed_out else "Crashed", "errorMessage": message}}
        with self._lock:
            self._idle.setdefault(deployment, []).append(worker)
        return answer

    def _deployment(self, name: str) -> Deployment:
        with self._account.lock:
            function = self._account.functions.get_function(name)
            if not str(function.run_time).startswith("python"):
                raise EmulationGap(f"function {name}: runtime {function.run_time} is not played")
            return Deployment(
                name=name,
                arn=function.function_arn,
                handler=function.handler,
                role=function.role,
                timeout_s=int(function.timeout),
                memory_mb=int(function.memory_size),
                runtime=function.run_time,
                sha256=function.code_sha_256,
                environment=tuple(sorted((k, str(v)) for k, v in function.environment_vars.items())),
            )

    def _take(self, deployment: Deployment) -> Worker:
        with self._lock:
            warm = self._idle.get(deployment, [])
            while warm:
                worker = warm.pop()
                if worker.alive():
                    return worker
        return self._start(deployment)

    def _start(self, deployment: Deployment) -> Worker:
        with self._account.lock:
            function = self._account.functions.get_function(deployment.name)
        root = self._code.unpacked(function)
        role = self._account.assume(deployment.role, deployment.name)
        scratch = self._folder / "tmp"
        scratch.mkdir(exist_ok=True)
        worker = Worker.start(
            self._processes,
            env=self._environment(deployment, root, role),
            cwd=root,
            log=self.log(deployment.name),
            runtime_site=self._code.runtime_site,
        )
        with self._lock:
            self._by_key[role.access_key] = worker
        return worker

    def crash(self, access_key: str) -> None:
        """Kills the worker that calls with these keys, as Lambda's host dies; nothing for keys of anybody else."""
        with self._lock:
            worker = self._by_key.get(access_key)
        if worker is not None:
            worker.crash()

    def _environment(self, deployment: Deployment, root: Path, role: Credentials) -> dict[str, str]:
        """The deployed variables, the runtime's own, the role's keys and the endpoints: nothing of this process."""
        chosen = {"REHEARSAL_SITECUSTOMIZE": str(self.sabotage), "REHEARSAL_SPOILS": self.spoils}
        sabotage = chosen if self.sabotage else {}
        group = f"/aws/lambda/{deployment.name}"
        return (
            dict(deployment.environment)
            | {
                "_HANDLER": deployment.handler,
                "AWS_LAMBDA_FUNCTION_NAME": deployment.name,
                "AWS_LAMBDA_FUNCTION_MEMORY_SIZE": str(deployment.memory_mb),
                "AWS_LAMBDA_FUNCTION_VERSION": "$LATEST",
                "AWS_LAMBDA_INITIALIZATION_TYPE": "on-demand",
                "AWS_LAMBDA_LOG_GROUP_NAME": group,
                "AWS_LAMBDA_LOG_STREAM_NAME": uuid.uuid4().hex,
                "AWS_EXECUTION_ENV": f"AWS_Lambda_{deployment.runtime}",
                "AWS_REGION": self._account.region,
                "AWS_DEFAULT_REGION": self._account.region,
                "LAMBDA_TASK_ROOT": str(root),
                "LANG": "en_US.UTF-8",
                "TZ": ":UTC",
                "PATH": os.defpath,
                "PYTHONDONTWRITEBYTECODE": "1",
                # On AWS this address answers nothing inside a function; a fall-back to it would hang for seconds.
                "AWS_EC2_METADATA_DISABLED": "true",
            }
            | role.as_env()
            | self.endpoints
            | sabotage
        )

    def invoke_async(self, name: str, event: Any) -> None:
        """An event invocation: answered at once, retried as the function's EventInvokeConfig says."""
        threading.Thread(target=self._invoke_event, args=(name, event, 0), name=f"async-{name}", daemon=True).start()

    def _invoke_event(self, name: str, event: Any, attempt: int) -> None:
        try:
            done = self.invoke(name, event)
        except Exception as error:  # noqa: BLE001  the edge of the thread: the report shows it
            self.problems.append(f"invocation of {name}: {error!r}")
            return
        if not done.error:
            return
        config = self._invoke_config(name)
        if attempt < int(config.get("MaximumRetryAttempts", 2)):
            again = threading.Thread(target=self._invoke_event, args=(name, event, attempt + 1), daemon=True)
            self._timeline.after(self.retry_s * (attempt + 1), again.start)
            return
        destination = ((config.get("DestinationConfig") or {}).get("OnFailure") or {}).get("Destination", "")
        if ":sqs:" in destination:
            record = {
                "requestContext": {"condition": "RetriesExhausted", "approximateInvokeCount": attempt + 1},
                "requestPayload": event,
                "responsePayload": {"errorType": done.error, "errorMessage": done.message},
            }
            self._queues.send(destination.rsplit(":", 1)[-1], json.dumps(record))

    def _invoke_config(self, name: str) -> dict[str, Any]:
        with self._account.lock:
            configs = self._account.functions.get_function(name).event_invoke_config
            return dict(configs[-1].config) if configs else {}
