"""`listen=` of a run: what a daemon serves, of the pipeline that a program runs itself."""
