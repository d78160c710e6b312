"""What a store holds, in other tools' formats."""
