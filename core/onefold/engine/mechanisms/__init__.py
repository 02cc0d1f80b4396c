"""Other mechanisms of fault tolerance than barriers, side by side with them. Each is imported by its name alone: its
`worker`, and its `driver` where the driver's half is another one, too."""
