"""A MariaDB server on this machine."""
