"""Event source mappings: what polls the queues and calls the functions, as deployed."""

from __future__ import annotations

import threading
import traceback
from collections import Counter
from dataclasses import dataclass
from typing import Any

from rehearsal.plane.account import Account
from rehearsal.plane.failures import EmulationGap
from rehearsal.plane.functions import Functions, Invocation
from rehearsal.plane.queues import Queues, Received


@dataclass(frozen=True, slots=True, kw_only=True)
class Mapping:
    """One deployed mapping from a queue to a function."""

    uuid: str
    queue_arn: str
    function: str
    batch_size: int
    partial: bool
    concurrency: int


class Pollers:
    """Threads that read each mapped queue. `concurrency` bounds the functions that run at once per mapping.

    A batch whose function fails stays invisible until its visibility timeout, then comes again; so do the messages
    that a partial response names. The others are deleted. `hold(True)` stops delivery: messages pile up.
    """

    def __init__(self, *, account: Account, queues: Queues, functions: Functions, concurrency: int = 1) -> None:
        self.problems: list[str] = []
        self.batches: Counter[str] = Counter()
        self._account = account
        self._queues = queues
        self._functions = functions
        self._concurrency = concurrency
        self._threads: dict[str, list[threading.Thread]] = {}
        self._ending = threading.Event()
        self._held = False

    def mappings(self) -> list[Mapping]:
        """The enabled mappings of the account. Raises EmulationGap for what is not played."""
        with self._account.lock:
            deployed = self._account.functions.list_event_source_mappings("", "")
            return [self._mapping(esm) for esm in deployed if esm.enabled]

    def _mapping(self, esm: Any) -> Mapping:
        if esm.filter_criteria or ":sqs:" not in esm.event_source_arn:
            raise EmulationGap(f"event source mapping {esm.uuid}: filters and sources other than SQS are not played")
        scaling = (esm.scaling_config or {}).get("MaximumConcurrency", 1000)
        return Mapping(
            uuid=esm.uuid,
            queue_arn=esm.event_source_arn,
            function=esm.function_arn.rsplit(":", 1)[-1],
            batch_size=esm.batch_size,
            partial="ReportBatchItemFailures" in (esm.function_response_types or []),
            concurrency=min(int(scaling), self._concurrency),
        )

    def refresh(self) -> None:
        """Starts polling mappings that are new since the last call."""
        for mapping in self.mappings():
            if mapping.uuid in self._threads:
                continue
            threads = [
                threading.Thread(target=self._poll, args=(mapping,), name=f"poll-{mapping.function}-{n}", daemon=True)
                for n in range(mapping.concurrency)
            ]
            self._threads[mapping.uuid] = threads
            for thread in threads:
                thread.start()

    def end(self, uuids: set[str]) -> None:
        """Stops polling these mappings: they are about to be deleted. Returns when their last batch is done."""
        ended = [thread for uuid in uuids for thread in self._threads.pop(uuid, [])]
        for thread in ended:
            thread.join(60)

    def hold(self, held: bool) -> None:  # noqa: FBT001  on or off is the whole meaning
        self._held = held

    def stop(self) -> None:
        self._ending.set()
        with self._queues.arrived:
            self._queues.arrived.notify_all()
        for threads in self._threads.values():
            for thread in threads:
                thread.join(5)

    def _poll(self, mapping: Mapping) -> None:
        while not self._ending.is_set() and mapping.uuid in self._threads:
            messages = [] if self._held else self._queues.receive(mapping.queue_arn, mapping.batch_size)
            if not messages:
                with self._queues.arrived:
                    self._queues.arrived.wait(0.1)
                continue
            try:
                self._work(mapping, messages)
            except Exception:  # noqa: BLE001  the edge of the thread: the report shows it, polling goes on
                self.problems.append(f"queue {mapping.queue_arn}: {traceback.format_exc()}")

    def _work(self, mapping: Mapping, messages: list[Received]) -> None:
        self.batches[mapping.function] += 1
        done = self._functions.invoke(mapping.function, {"Records": [m.record for m in messages]})
        if self._ending.is_set():
            return
        failed = _failed(mapping, messages, done)
        self._queues.delete(mapping.queue_arn, [m for m in messages if m.message_id not in failed])
        self._queues.release(mapping.queue_arn, failed)


def _failed(mapping: Mapping, messages: list[Received], done: Invocation) -> set[str]:
    """Ids of the messages that must come again. An answer that cannot be read fails the whole batch, as on AWS."""
    everything = {m.message_id for m in messages}
    if done.error:
        return everything
    if not mapping.partial or done.result in (None, "", {}):
        return set()
    try:
        named = {str(item["itemIdentifier"]) for item in done.result["batchItemFailures"] or []}
    except (KeyError, TypeError):
        return everything
    return named if named.issubset(everything) else everything
