"""Brings the deliberate bug of a test run into the processes that its tests start."""

import os

from tests.support.mutations.mutate import VARIABLE, install

if name := os.environ.get(VARIABLE):
    install(name)
