"""An HBase with its parts on this machine."""
