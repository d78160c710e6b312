"""Jobs whose records are too many to read: which ranks to look at, from a few columns of all of them."""
