"""`spotproof dlq`: what could not be worked on, why, and sending it back.

A letter is deleted only after it was sent to its queue, so that a replay that is cut off loses nothing. Why not
StartMessageMoveTask: docs/decisions/dead-letters.md.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import click

from spotproof.cli.letters import Diagnosis, Fate, diagnose
from spotproof.cli.main import say_json
from spotproof.cli.stackoutputs import stack_of
from spotproof.cli.where import dry_run_option, json_option, of_stack
from spotproof.contract import names
from spotproof.contract.events import Queue
from spotproof.errors import BadSettings
from spotproof.store.clients import Clients
from spotproof.store.letters import DeadLetters, Letter

LIMIT: Final = 1000
_QUEUES: Final = (*(queue.value for queue in Queue), names.UNDELIVERED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Post:
    """A stack's dead letters. `queues` are the URLs of all its queues by name."""

    client: Any
    queues: Mapping[str, str]

    def letters(self, name: str) -> DeadLetters:
        """The dead letters of one queue."""
        return DeadLetters(self.client, self.queues[_dead(name)])

    def diagnosed(self, name: str, found: Sequence[Letter]) -> list[tuple[Letter, Diagnosis]]:
        """Each letter with its diagnosis."""
        return [(letter, diagnose(_dead(name), letter, self.queues)) for letter in found]


def _dead(name: str) -> str:
    return name if name == names.UNDELIVERED else names.dead_letters_of(Queue(name))


def post_of(stack_name: str | None, outputs: Path | None) -> Post:
    """Raises BadSettings for a stack that does not tell its queues."""
    stack = stack_of(name=stack_name, file=outputs)
    if not all(_dead(name) in stack.queues for name in _QUEUES):
        raise BadSettings("the stack does not tell its queues", next_step="deploy it with this version")
    return Post(client=Clients(region=stack.region).sqs, queues=stack.queues)


def _options(function: Callable[..., None]) -> Callable[..., None]:
    return of_stack(json_option(function))


_queue = click.argument("queue", type=click.Choice(_QUEUES))
_ids = click.option("--id", "ids", multiple=True, metavar="ID", help="Only this letter (repeatable).")
_limit = click.option("--limit", default=LIMIT, show_default=True, type=click.IntRange(1), help="Look at so many.")


@click.group(name="dlq")
def command() -> None:
    """Look at dead letters, send them back, or drop them."""


@command.command(name="list")
@_options
@_limit
def list_(*, stack_name: str | None, outputs: Path | None, as_json: bool, limit: int) -> None:
    """Show how many letters each queue has, and why."""
    post = post_of(stack_name, outputs)
    document = {name: _summary(post, name, limit) for name in _QUEUES}
    if as_json:
        say_json({"queues": document})
        return
    for name, said in document.items():
        click.echo(f"{name}: {said['letters']} letter{'' if said['letters'] == 1 else 's'}")
        for reason, count in said["reasons"].items():
            click.echo(f"  {count} x {reason}")
    if any(said["letters"] for said in document.values()):
        click.echo("next: `spotproof dlq show QUEUE`, correct the cause, then `spotproof dlq replay QUEUE`")


def _summary(post: Post, name: str, limit: int) -> dict[str, Any]:
    letters = post.letters(name)
    with _held(letters, limit) as found:
        told = post.diagnosed(name, found)
    reasons = Counter(said.reason for _, said in told)
    fates = Counter(said.fate.value for _, said in told)
    return {"letters": max(letters.count(), len(told)), "reasons": dict(reasons), "fates": dict(fates)}


@command.command(name="show")
@_queue
@_options
@_ids
@_limit
def show(
    *, queue: str, stack_name: str | None, outputs: Path | None, as_json: bool, ids: Sequence[str], limit: int
) -> None:
    """Show each letter of QUEUE: what it says, why it is there, what a replay would do."""
    post = post_of(stack_name, outputs)
    with _held(post.letters(queue), limit) as found:
        told = [(letter, said) for letter, said in post.diagnosed(queue, found) if not ids or letter.id in ids]
    if as_json:
        say_json({"queue": queue, "letters": [_plain(letter, said) | {"body": letter.body} for letter, said in told]})
        return
    for letter, said in told:
        click.echo(f"{letter.id}  {_time(letter)}  {said.what}\n  {said.reason} ({said.fate.value})\n  {letter.body}")
    if not told:
        click.echo(f"{queue}: no letters")


@command.command(name="replay")
@_queue
@_options
@_ids
@_limit
@dry_run_option
@click.option("--poison", is_flag=True, help="Also letters that would come back.")
def replay(*, queue: str, stack_name: str | None, outputs: Path | None, as_json: bool, **how: Any) -> None:
    """Send the letters of QUEUE back to where they belong. Can be repeated, and cut off, at any time."""
    post = post_of(stack_name, outputs)
    wanted = {Fate.REPLAY, Fate.POISON} if how["poison"] else {Fate.REPLAY}
    chosen = _chosen(wanted, how["ids"])

    def act(letters: DeadLetters, letter: Letter, said: Diagnosis) -> None:
        letters.send(letter, to=post.queues[said.target], attributes={names.REPLAYS: str(said.replays + 1)})
        letters.remove(letter)

    def possible(letter: Letter, said: Diagnosis) -> bool:
        return chosen(letter, said) and bool(said.target)

    _each(
        _Job(post=post, queue=queue, done="replayed", dry_run=how["dry_run"], limit=how["limit"]),
        possible,
        act,
        as_json,
    )


@command.command(name="drop")
@_queue
@_options
@_ids
@_limit
@dry_run_option
@click.option("--all", "everything", is_flag=True, help="Also letters that could be replayed.")
def drop(*, queue: str, stack_name: str | None, outputs: Path | None, as_json: bool, **how: Any) -> None:
    """Delete the letters of QUEUE for which a replay does nothing, or those named by --id, for good."""
    post = post_of(stack_name, outputs)
    wanted = set(Fate) if how["everything"] or how["ids"] else {Fate.POISON, Fate.POINTLESS}
    chosen = _chosen(wanted, how["ids"])

    def act(letters: DeadLetters, letter: Letter, said: Diagnosis) -> None:  # noqa: ARG001 - one signature for both
        letters.remove(letter)

    _each(
        _Job(post=post, queue=queue, done="dropped", dry_run=how["dry_run"], limit=how["limit"]), chosen, act, as_json
    )


Choice = Callable[[Letter, Diagnosis], bool]
Act = Callable[[DeadLetters, Letter, Diagnosis], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Job:
    post: Post
    queue: str
    done: str
    dry_run: bool
    limit: int


def _chosen(fates: set[Fate], ids: Sequence[str]) -> Choice:
    return lambda letter, said: said.fate in fates and (not ids or letter.id in ids)


def _each(job: _Job, chosen: Choice, act: Act, as_json: bool) -> None:  # noqa: FBT001 - how to speak, the last word
    """Acts on each chosen letter, one after the other, and says what was done even if it is cut off."""
    done: list[dict[str, Any]] = []
    left: list[dict[str, Any]] = []
    letters = job.post.letters(job.queue)
    try:
        with _held(letters, job.limit) as found:
            for letter, said in job.post.diagnosed(job.queue, found):
                if not chosen(letter, said):
                    left.append(_plain(letter, said))
                    continue
                if not job.dry_run:
                    act(letters, letter, said)
                    found.remove(letter)
                done.append(_plain(letter, said))
    finally:
        _report(job, done, left, as_json=as_json)


def _report(job: _Job, done: Sequence[Mapping[str, Any]], left: Sequence[Mapping[str, Any]], *, as_json: bool) -> None:
    if as_json:
        say_json({"queue": job.queue, "dry_run": job.dry_run, job.done: list(done), "left": list(left)})
        return
    would = "would be " if job.dry_run else ""
    for one in done:
        click.echo(f"{would}{job.done}: {one['id']} {one['what']}")
    for one in left:
        click.echo(f"left: {one['id']} {one['what']} ({one['fate']}: {one['reason']})")
    click.echo(f"{job.queue}: {len(done)} {would}{job.done}, {len(left)} left")


@contextmanager
def _held(letters: DeadLetters, limit: int) -> Iterator[list[Letter]]:
    """The letters, hidden from others meanwhile; those that are still in the list at the end are released."""
    found = list(letters.look(limit=limit))
    try:
        yield found
    finally:
        letters.release(found)


def _plain(letter: Letter, said: Diagnosis) -> dict[str, Any]:
    return {
        "id": letter.id,
        "sent_at": letter.sent_at,
        "what": said.what,
        "reason": said.reason,
        "fate": said.fate.value,
        "target": said.target,
        "replays": said.replays,
    }


def _time(letter: Letter) -> str:
    return datetime.fromtimestamp(letter.sent_at, tz=UTC).strftime("%Y-%m-%d %H:%M:%SZ")
