"""SNS: what people are told. A burst is one message, and each says what, if anything, to do."""

from __future__ import annotations

from typing import Any, Final

from spotproof.contract.frozen import dataclass
from spotproof.store.awserrors import aws_failures, code_of

SUBJECT_CHARACTERS: Final = 100  # SNS refuses a longer one, or one with a line end
TEXTS: Final = 20  # of one message; the others are counted
NOTHING_TO_DO: Final = "Nothing to do."


@dataclass(frozen=True, slots=True, kw_only=True)
class Word:
    """One thing that happened. Words of one run and one `many` are said together, under `many` with their count."""

    subject: str
    text: str
    do: str = ""
    run: str = ""
    many: str = ""

    @property
    def kind(self) -> tuple[str, str]:
        """What makes two words one message."""
        return self.run, self.many or self.subject


class Notices:
    """Messages to the stack's topic: collected while a batch is worked on, said once at its end."""

    def __init__(self, client: Any, topic: str, *, stack: str) -> None:
        self._client = client
        self._topic = topic
        self._stack = stack
        self._words: dict[tuple[str, str], list[Word]] = {}

    def say(self, word: Word) -> None:
        """Take note of a word."""
        self._words.setdefault(word.kind, []).append(word)

    def flush(self) -> list[str]:
        """Publish what was noted, one message for each run and kind, and forget it.

        Returns the error codes of those that did not go out: they are not tried again.
        """
        kinds, self._words = list(self._words.values()), {}
        codes = [self._publish(subject_of(words), text_of(words, stack=self._stack)) for words in kinds]
        return [code for code in codes if code]

    def _publish(self, subject: str, text: str) -> str:
        try:
            self._client.publish(TopicArn=self._topic, Subject=subject, Message=text)
        except aws_failures() as failure:
            return code_of(failure)
        return ""


def subject_of(words: list[Word]) -> str:
    """One line that SNS takes."""
    first = words[0]
    several = len(_texts(words)) > 1 and first.many
    said = first.many.replace("{count}", str(len(_texts(words)))) if several else first.subject
    plain = "".join(letter if letter.isascii() and letter.isprintable() else "?" for letter in said)
    return plain[:SUBJECT_CHARACTERS]


def text_of(words: list[Word], *, stack: str) -> str:
    """What happened, line by line, then what to do about it, and the command that shows more."""
    texts = _texts(words)
    more = [f"... and {len(texts) - TEXTS} more."] if len(texts) > TEXTS else []
    todo = list(dict.fromkeys(word.do for word in words if word.do)) or [NOTHING_TO_DO]
    look = [f"To see it: spotproof status {words[0].run} --stack {stack}"] if words[0].run else []
    return "\n".join([*texts[:TEXTS], *more, "", *todo, *look])


def _texts(words: list[Word]) -> list[str]:
    """Each once: a message that came twice tells nothing new."""
    return list(dict.fromkeys(word.text for word in words))
