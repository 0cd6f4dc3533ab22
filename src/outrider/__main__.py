"""python -m outrider: the command, where the script is not on the path."""

from outrider.cli import main

main()
