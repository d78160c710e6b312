"""What can be done to a job, from outside or in its training code; each knows by its own clock how much it did."""
