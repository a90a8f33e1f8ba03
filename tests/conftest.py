"""What holds for the property tests of all folders: the same examples in every run, however slow the machine is."""

from hypothesis import HealthCheck, settings

settings.register_profile("steady", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("steady")
