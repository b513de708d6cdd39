"""Two recordings at their peaks: which line of code holds more in the one than in the other."""
