"""Conformance suites: what a drafter, a policy or a target must do, as classes that pytest collects."""
