"""The one conversion of values to types: exact, or an error that names the value.

Every value that leaves Python or Arrow for a type goes through here: `exact_array` takes Python values, `exact_cast`
Arrow's, and `canonical` single ones. All three follow one table:

=====================  ===================================================================================
a type                 takes
=====================  ===================================================================================
boolean                true and false; no numbers
integers               integers of its range; decimals that are such integers; no floats (1.0 neither)
float, double          floats; integers up to 2^24 and 2^53; no decimals. A `float` takes a double only where
                       it is one of its own, but a Python float, which has no narrower type, by rounding
decimal                decimals and integers of its precision that lose nothing at its scale; no floats
string                 texts; bytes that are UTF-8
binary                 bytes, of its length if it has one; texts, as UTF-8
date                   dates; no timestamps, also none at midnight
timestamp              timestamps with a zone: the same instant; none without a zone
timestamp_ntz          timestamps without a zone; none with one
time, duration         times of day without a zone; durations
array                  lists, tuples and arrays, of its length if it has one; no sets
struct                 structs and dicts without fields that it lacks; fields that may be null may be missing;
                       plain tuples of as many values
map                    maps, dicts and lists of pairs, whose keys are not null, and there once
=====================  ===================================================================================

Times lose nothing to a coarser unit and lie in the range of a finer one. Null is a value of every type, but not below
a NOT NULL. How values are encoded (dictionaries, run ends, views, large offsets) does not matter. Numbers are not read
out of texts here: that is decimals.py's and the formats'.
"""

from onefold.core.values.exact.arrays import exact_array
from onefold.core.values.exact.canonical import canonical, copies, is_mutable
from onefold.core.values.exact.casting import exact_cast
from onefold.core.values.exact.kinds import TAKES, Family, Mismatch, family

__all__ = ["TAKES", "Family", "Mismatch", "canonical", "copies", "exact_array", "exact_cast", "family", "is_mutable"]
