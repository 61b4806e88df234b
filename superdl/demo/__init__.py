"""``superdl demo``: SUPER beside a DataLoader with Pillow, on this machine and these images.

:mod:`~superdl.demo.measuring` is a process that reads epochs with one of them,
:mod:`~superdl.demo.command` runs such processes and shows their figures.
"""
