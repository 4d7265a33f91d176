"""`dataclass` as the standard library's, for frozen ones with slots: made in a third of the time.

A handler makes a hundred and fifty of them before it hears its first notice, and each takes the standard library six
runs of the compiler: that was half of what a cold start paid for our own code. Here only `__init__` is compiled; what
is the same for all of them is written once. Everything else (`fields`, `replace`, `asdict`) is the standard library's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dataclasses import dataclass
else:
    import dataclasses
    from operator import attrgetter

    _UNSET = object()
    _set = object.__setattr__

    def dataclass(*, frozen, slots, kw_only=False, init=True):
        """The decorator `dataclasses.dataclass`, for `frozen=True, slots=True`."""
        if not (frozen and slots):
            raise TypeError("only for frozen dataclasses with slots: use the standard library's")

        def make(cls):
            if any(dataclasses.is_dataclass(base) for base in cls.__mro__[1:]):
                return dataclasses.dataclass(frozen=True, slots=True, kw_only=kw_only, init=init)(cls)
            made = dataclasses.dataclass(init=False, repr=False, eq=False, slots=True, kw_only=kw_only)(cls)
            fields = dataclasses.fields(made)
            if init and "__init__" not in cls.__dict__:
                made.__init__ = _init_of(made, fields)
            made.__setattr__, made.__delattr__ = _refuse_set, _refuse_delete
            made.__getstate__, made.__setstate__ = _state, _set_state
            made._values = staticmethod(_values_of([one.name for one in fields if one.compare]))  # noqa: SLF001 - ours
            for name, method in (("__repr__", _repr), ("__eq__", _eq), ("__hash__", _hash)):
                if name not in cls.__dict__:
                    setattr(made, name, method)
            made.__dataclass_params__.frozen = True
            return made

        return make

    def _values_of(names):
        if len(names) > 1:
            return attrgetter(*names)
        return (lambda one: (getattr(one, names[0]),)) if names else (lambda _: ())

    def _init_of(cls, fields):
        known = {"_set": _set, "_UNSET": _UNSET}
        taken, lines = [], []
        for one in fields:
            name, default, factory = one.name, f"_d_{one.name}", f"_f_{one.name}"
            known |= {default: one.default, factory: one.default_factory}
            has_default = one.default is not dataclasses.MISSING
            has_factory = one.default_factory is not dataclasses.MISSING
            value = f"{factory}() if {name} is _UNSET else {name}" if has_factory else name
            if one.init:
                given = "_UNSET" if has_factory else default
                taken.append(f"{name}={given}" if has_default or has_factory else name)
                lines.append(f"_set(self, {name!r}, {value})")
            elif has_default or has_factory:
                lines.append(f"_set(self, {name!r}, {factory + '()' if has_factory else default})")
        if hasattr(cls, "__post_init__"):
            lines.append("self.__post_init__()")
        star = "*, " if taken and fields[0].kw_only else ""
        exec(f"def __init__(self, {star}{', '.join(taken)}):\n " + "\n ".join(lines or ["pass"]), known)  # noqa: S102
        method = known["__init__"]
        method.__qualname__, method.__module__ = f"{cls.__qualname__}.__init__", cls.__module__
        return method

    def _repr(self):
        said = (f"{one.name}={getattr(self, one.name)!r}" for one in dataclasses.fields(self) if one.repr)
        return f"{type(self).__qualname__}({', '.join(said)})"

    def _eq(self, other):
        return self._values(self) == self._values(other) if type(other) is type(self) else NotImplemented

    def _hash(self):
        return hash(self._values(self))

    def _refuse_set(self, name, value):  # noqa: ARG001 - Python's signature
        raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")

    def _refuse_delete(self, name):  # noqa: ARG001 - Python's signature
        raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")

    def _state(self):
        return [getattr(self, one.name) for one in dataclasses.fields(self)]

    def _set_state(self, state):
        for one, value in zip(dataclasses.fields(self), state, strict=True):
            _set(self, one.name, value)


__all__ = ["dataclass"]
