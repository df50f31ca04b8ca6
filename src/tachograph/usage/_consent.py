"""Whether anything is recorded or sent, and why: one resolver for programs and for `tacho usage status`.

The first of these that says anything decides: what the program was told; `DO_NOT_TRACK` and the app's own variable; the
choice that `tacho usage` stored; CI or an offline machine; the app's policy. In doubt it is off. A no that the program
was told which started this one counts beside all but the first, and the least of the two holds.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Literal, NamedTuple, get_args

from tachograph.exceptions import ConfigError, did_you_mean
from tachograph.usage._folder import Mode, as_mode, stored_choice

__all__ = [
    "Choices",
    "Decision",
    "Policy",
    "as_policy",
    "decide",
    "inherited_choice",
    "is_set",
    "less",
    "named_policy",
    "policy_text",
]

Policy = Literal["opt-in", "local", "opt-out"]
Choices = Mode | bool | None

_POLICIES: dict[Policy, tuple[Mode, str]] = {
    "opt-in": ("off", "to record nothing until you turn it on"),
    "local": ("local", "to record on this machine and to send nothing"),
    "opt-out": ("on", "to send until you turn it off"),
}
_YES = {"1", "true", "yes", "on"}
_NO = {"0", "false"}
_UNSET = {"", "0", "false", "no", "off"}

_AUTOMATIC = (
    "CI", "CONTINUOUS_INTEGRATION", "GITHUB_ACTIONS", "GITLAB_CI", "BUILDKITE", "CIRCLECI", "TRAVIS", "TF_BUILD",
    "JENKINS_URL", "TEAMCITY_VERSION", "CODEBUILD_BUILD_ID", "DRONE", "APPVEYOR",
)  # fmt: skip
_OFFLINE = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_DATASETS_OFFLINE", "HF_HUB_DISABLE_TELEMETRY")


class Decision(NamedTuple):
    """What is decided, and why."""

    mode: Mode
    reason: str
    source: Literal["choice", "environment", "stored", "circumstance", "policy"]

    @property
    def is_explicit(self) -> bool:
        """Whether the user decided it, not a policy or a circumstance."""
        return self.source in {"choice", "environment", "stored"}


def decide(
    app: str, env_prefix: str, policy: Policy, *, choice: Choices = None, environ: Mapping[str, str] | None = None
) -> Decision:
    """Decide for an app.

    Args:
        app: its name.
        env_prefix: what its own variable begins with.
        policy: what it does if nobody says anything.
        choice: what the program was told, say by a flag on its command line.
        environ: the environment; that of this process if not given.

    Raises:
        ConfigError: if the choice is none.
    """
    environ = os.environ if environ is None else environ
    if choice is not None:
        return Decision(as_mode(choice), "the program was told so", "choice")
    decision = _decide(app, env_prefix, policy, environ)
    inherited = environ.get(inherited_choice(app))
    if inherited is not None:
        mode = less(decision.mode, "local" if inherited == "local" else "off")
        if mode != decision.mode:
            return Decision(mode, "the program that started this one was told so", "choice")
    return decision


def _decide(app: str, env_prefix: str, policy: Policy, environ: Mapping[str, str]) -> Decision:
    said = {name: environ[name] for name in (f"{env_prefix}_DO_NOT_TRACK", "DO_NOT_TRACK") if name in environ}
    for name, value in said.items():
        text = value.strip().lower()
        if text in _YES:
            return Decision("off", f"{name} is set to {text}", "environment")
        if text not in _NO:
            reason = f"{name} is set, and not to 0 or false: whatever else it says counts as 1"
            return Decision("off", reason, "environment")
    if said:
        reason = f"{' and '.join(said)} {'say' if len(said) > 1 else 'says'} that you may be tracked"
        return Decision("on", reason, "environment")
    stored = stored_choice(app)
    if stored is not None:
        return Decision(stored.mode, stored.reason, "stored")
    for names, circumstance in ((_AUTOMATIC, "this looks like CI"), (_OFFLINE, "this machine is to stay offline")):
        for name in names:
            if is_set(environ, name):
                return Decision("off", f"{circumstance}: {name} is set", "circumstance")
    return Decision(_POLICIES[policy][0], policy_text(app, policy), "policy")


def policy_text(app: str, policy: Policy) -> str:
    """Return in words what an app does if nobody says anything."""
    return f"the policy of {app} is {_POLICIES[policy][1]}"


def inherited_choice(app: str) -> str:
    """Return the variable by which a program that was told no lets those it starts know."""
    return f"TACHO_USAGE_CHOICE_{app.replace('-', '_').upper()}"


def is_set(environ: Mapping[str, str], name: str) -> bool:
    """Tell whether a switch in the environment is on: anything but nothing, 0, false, no and off."""
    return environ.get(name, "").strip().lower() not in _UNSET


def less(one: Mode, other: Mode) -> Mode:
    """Return the mode that tells less."""
    return min(one, other, key=get_args(Mode).index)


def as_policy(policy: str) -> Policy:
    """Return a policy that is one.

    Raises:
        ConfigError: if it is none.
    """
    known = named_policy(policy)
    if known is None:
        names = get_args(Policy)
        raise ConfigError(f"consent={policy!r}: expected one of {', '.join(names)}{did_you_mean(str(policy), names)}")
    return known


def named_policy(policy: object) -> Policy | None:
    """Return a policy by its name, None if it is none."""
    return next((known for known in get_args(Policy) if known == policy), None)
