"""Egress by name: the servers that a sandbox without a network may reach through this process."""

from sandboxkit.egress._audit import EgressRecord
from sandboxkit.egress._native import NativeRules
from sandboxkit.egress._rules import Credential, Egress

__all__ = ["Credential", "Egress", "EgressRecord", "NativeRules"]
