"""Ready systems."""

from pm_sysid.models.oscillators import bouc_wen, duffing

__all__ = ["bouc_wen", "duffing"]
