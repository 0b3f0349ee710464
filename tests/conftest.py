"""One thread for torch, so that numbers repeat and tests share the machine; hypothesis without a clock."""

import torch
from hypothesis import settings

torch.set_num_threads(1)
settings.register_profile("lab", deadline=None)
settings.load_profile("lab")
