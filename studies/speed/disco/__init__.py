"""DISCO against tuned lengths: what is recorded, the rounds that it gives, and the tables (`study`)."""
