"""Measurements: tasks with checkable answers, a runner, a report. No part of the test suite."""
