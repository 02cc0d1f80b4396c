"""Diagnoses a pipeline: what its settings guarantee, and whether its servers fit them. Changes nothing."""

from onefold.operate.doctor.diagnosis import Diagnosis, SinkDiagnosis, diagnose

__all__ = ["Diagnosis", "SinkDiagnosis", "diagnose"]
