"""The memory planner: what fits, every setting, and why; from config.json alone."""

from __future__ import annotations

from visavis.plan.devices import Device, choose, detect, stated
from visavis.plan.planner import plan
from visavis.plan.shape import ModelShape, read_shape
from visavis.plan.types import Advice, EnginePlan, MemoryPart, Plan, Proposal
from visavis.plan.units import format_bytes, parse_bytes, parse_images

__all__ = [
    "Advice",
    "Device",
    "EnginePlan",
    "MemoryPart",
    "ModelShape",
    "Plan",
    "Proposal",
    "choose",
    "detect",
    "format_bytes",
    "parse_bytes",
    "parse_images",
    "plan",
    "read_shape",
    "stated",
]
