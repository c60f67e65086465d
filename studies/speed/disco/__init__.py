"""DISCO against tuned lengths: recording (`record`), replayed rounds (`rounds`), and tables (`study`)."""
