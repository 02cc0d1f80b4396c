"""The mechanisms of fault tolerance beside each other, on one flow under the same kills: `python -m bench.compare`.

job.py: the flow, in a process of its own; rounds.py: what is done to it; audit.py: what its tables must have then;
figures.py: what comes of a round; drawing.py: bars and strips as SVG; page.py: docs/mechanisms.md's part
"""
