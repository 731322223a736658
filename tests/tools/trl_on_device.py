"""CWGRPOTrainer on the pretended device, for test_trl_runs.py and test_trl_weights.py.

It is apart from trl_training.py, because a program that has this device cannot wait for other processes: PyTorch would
wait on the device.
"""

from pretend_device import OnDevice, Pretend, back, on_device
from trl import GRPOTrainer
from trl_training import Watched

from cw_plugin.hosts.trl import CWGRPOTrainer


class TRLOnDevice(GRPOTrainer):
    """Gives what CWGRPOTrainer asks of it on the pretended device."""

    def _generate_and_score_completions(self, inputs):
        return on_device(super()._generate_and_score_completions(inputs))

    def _calculate_rewards(self, *args, **kwargs):
        return on_device(super()._calculate_rewards(*args, **kwargs))

    def _get_per_token_logps_and_entropies(self, model, *tensors, **named):
        found = super()._get_per_token_logps_and_entropies(model, *back(tensors), **back(named))
        return on_device(found) if isinstance(tensors[0], OnDevice) else found


class CWOnDevice(Watched, CWGRPOTrainer, TRLOnDevice):
    """All that CWGRPOTrainer does is done on the pretended device, and what TRL does, on the CPU."""

    def _generate_and_score_completions(self, inputs):
        with Pretend():
            return back(super()._generate_and_score_completions(inputs))

    def _calculate_rewards(self, *args, **kwargs):
        return back(super()._calculate_rewards(*args, **kwargs))
