"""NeMo Gym: rewards and multi-turn rollouts of GRPO from the servers of a running NeMo Gym.

The plugin talks to the servers over HTTP, and starts or installs nothing. With one turn, the trainer generates a
completion and a resources server rewards it (`POST /verify`). With several, an agent server runs the whole conversation
and returns its tokens and its reward (`POST /run`).

A request that fails gives a *missing reward*, which is not 0: the completion has no influence on the training.
"""

from tachograph.plugins.nemo_gym._options import GymDataset, NemoGymOptions
from tachograph.plugins.nemo_gym._plugin import NemoGymPlugin

__all__ = ["GymDataset", "NemoGymOptions", "NemoGymPlugin"]
