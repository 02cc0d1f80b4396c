"""State as a savepoint has it: tables of Arrow, whatever the backend, the runtime and the number of workers."""
