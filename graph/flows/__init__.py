"""Jobs of which only the communication is recorded: iterations, the matrix of transfers, the verdict."""
