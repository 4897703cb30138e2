"""python -m unmask"""

from unmask.cli import main

main()
