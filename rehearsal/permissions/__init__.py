"""The IAM proof: every call that was made is allowed by the deployed roles, every grant needed, attacks refused.

    recorded call -> derive: (action, resource, context) -> evaluate: the statements of the caller's deployed role

An emulated account does not enforce IAM. What it recorded is evaluated here instead, against the policies that IAM
answers with, so that every reference in them is resolved as the deployment resolved it.
"""
