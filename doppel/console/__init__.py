"""Plan a budget and read it.

The commands of the wheel, and what makes a function a command: its signature the options, its docstring the help.
"""
