"""How the state of an earlier version of a flow becomes that of this one, where its code alone does not say it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, eq=False)
class Evolution:
    """What a start does with state that it finds, for `Flow(..., evolution=Evolution(...))`:

        Evolution(
            columns={"totals.amt": "amount"}, begins={"totals.n": 0}, drops={"totals.least", "visits/last"}
        )

    A uid and a dot name an aggregate of that operator, or a column of its states; a uid and a slash a state of that
    processor. Uids are those that operators have now. What is done already is not done again, so it may stay in the
    code until the next change.

    uids     operators that have another uid now: the earlier one, and that
    states   processors' states that have another name now
    columns  columns and aggregates that have another name now. An aggregate that is named under its own name is the
             same one, of a column of another name
    begins   what entries of before have in a column or an aggregate that is new: of an aggregate its state, a tuple
             where that is several columns, and None for that of no rows. Of windows each slice begins with it
    drops    aggregates, processors' states and whole operators that there are no more, and columns that are gone rather
             than renamed
    """

    uids: Mapping[str, str] = field(default_factory=dict)
    states: Mapping[str, str] = field(default_factory=dict)
    columns: Mapping[str, str] = field(default_factory=dict)
    begins: Mapping[str, Any] = field(default_factory=dict)
    drops: Collection[str] = frozenset()

    def moved(self, found: Collection[str]) -> dict[str, str]:
        """The uid that each of the operators that are found has now. One whose other uid is found, too, has moved
        before, and its earlier uid is another operator's since."""
        return {uid: uid if self.uids.get(uid) in found else self.uids.get(uid, uid) for uid in found}


NO_EVOLUTION = Evolution()
