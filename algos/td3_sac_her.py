"""SAC or TQC with hindsight experience replay (HER), as td3_her has it for TD3.

Papers    HER arXiv 1707.01495; SAC and TQC as in td3_sac.py.
Run       python algos/td3_sac_her.py --env-id panda_gym:PandaReach-v3 --quantiles 25 --drop 2

It imports td3.py, td3_sac.py and td3_her.py, which must lie beside it.
"""

from dataclasses import dataclass
from functools import partial

import td3
import td3_her
import td3_sac


@dataclass
class Args(td3_her.HindsightArgs, td3_sac.Args):
    pass


train = partial(td3_her.train, parent=td3_sac)
make_agent = td3_sac.make_agent

if __name__ == "__main__":
    td3.main("td3_sac_her", Args, make_agent, train, td3.evaluation_policy)
