"""mode="append": records in transactions that tasks open and the driver commits."""
