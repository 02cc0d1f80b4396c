"""Strong productions: what a hop sends is durable before the next one takes it, and is taken once.

Each chain without a sink is a hop. A step of one of its subtasks, a bundle, is one transaction of its worker's own
database: what it has taken, its state, and what it sends. The next hop reads that database, so nothing upstream is
computed again after a kill. What is sent to the sinks is the source of an ordinary flow, the last hop.
"""
