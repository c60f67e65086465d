"""How the weights of linear layers are stored: packed, and several in one, where that is faster."""
