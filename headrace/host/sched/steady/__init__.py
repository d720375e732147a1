"""Steps in which the same sequences go on, one token each."""
