"""EC2 instances: what EC2 says of them, and their end."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from lambdas.decisions.facts import Machine
from spotproof.contract import tags
from spotproof.contract.states import Market
from spotproof.errors import StoreError
from spotproof.store.awserrors import Failure, aws_failures, code_of, error_for, kind_of

PAGE: Final = 200  # ids of one filter; EC2 takes as many values
_GONE: Final = "InvalidInstanceID.NotFound"
_OF_ONE: Final = frozenset({Failure.MISSING, Failure.ACCESS, Failure.OTHER})  # EC2 refuses a request as a whole


class Machines:
    """Instances as EC2 describes them; DescribeInstances is eventually consistent."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def of_run(self, stack: str, run: str) -> tuple[Machine, ...]:
        """Every instance that carries the stack's and the run's tag, whoever launched it."""
        return tuple(self._described([_tag(tags.STACK, stack), _tag(tags.RUN, run)]))

    def described(self, instances: Sequence[str]) -> tuple[Machine, ...]:
        """Those of `instances` that EC2 shows, with the tags that they carry now: these are the authority, no event.

        By filter and not by id: an id that is gone would fail the whole call.
        """
        return self._filtered("instance-id", instances)

    def in_reservations(self, stack: str, reservations: Sequence[str]) -> tuple[Machine, ...]:
        """The stack's instances in these capacity reservations or blocks."""
        return self._filtered("capacity-reservation-id", reservations, _tag(tags.STACK, stack))

    def _filtered(self, name: str, values: Sequence[str], *others: dict[str, Any]) -> tuple[Machine, ...]:
        found: list[Machine] = []
        for first in range(0, len(values), PAGE):
            found += self._described([{"Name": name, "Values": list(values[first : first + PAGE])}, *others])
        return tuple(found)

    def terminate(self, instances: Sequence[str]) -> None:
        """End the instances; one that is gone is success. Raises StoreError once all that can end have ended."""
        refused: list[StoreError] = []
        for first in range(0, len(instances), PAGE):
            refused += self._terminate(list(instances[first : first + PAGE]))
        if refused:
            raise refused[0]

    def _terminate(self, instances: list[str]) -> list[StoreError]:
        try:
            self._client.terminate_instances(InstanceIds=instances)
        except aws_failures() as failure:
            # One that is gone, protected or not ours any more keeps the others alive: end them one by one.
            if len(instances) > 1 and kind_of(failure) in _OF_ONE:
                return [error for instance in instances for error in self._terminate([instance])]
            if code_of(failure) != _GONE:
                return [error_for(failure, doing=f"terminate {', '.join(instances)}")]
        return []

    def _described(self, filters: list[dict[str, Any]]) -> Iterator[Machine]:
        request: dict[str, Any] = {"Filters": filters, "MaxResults": 1000}
        while True:
            try:
                page = self._client.describe_instances(**request)
            except aws_failures() as failure:
                raise error_for(failure, doing="describe instances") from failure
            for reservation in page.get("Reservations", ()):
                yield from map(_machine, reservation.get("Instances", ()))
            if not page.get("NextToken"):
                return
            request["NextToken"] = page["NextToken"]


def _tag(key: str, value: str) -> dict[str, Any]:
    return {"Name": f"tag:{key}", "Values": [value]}


def _machine(described: Mapping[str, Any]) -> Machine:
    found = {tag["Key"]: tag["Value"] for tag in described.get("Tags", ())}
    launch = found.get(tags.LAUNCH, "")
    return Machine(
        instance=described["InstanceId"],
        state=described["State"]["Name"],
        instance_type=described.get("InstanceType", ""),
        zone=(described.get("Placement") or {}).get("AvailabilityZone", ""),
        market=Market.SPOT if described.get("InstanceLifecycle") == "spot" else Market.ON_DEMAND,
        launched_at=int(described["LaunchTime"].timestamp()),
        run=found.get(tags.RUN, ""),
        stack=found.get(tags.STACK, ""),
        launch=int(launch) if launch.isdecimal() else None,  # people can write anything into a tag
        reservation=described.get("CapacityReservationId") or "",
    )
