"""Consent: whether an app may record and send, and why.

`decide` resolves it once, when an app is configured, and for `tacho usage status`. The first source in this list
that is set decides:

1. the ``choice`` that the program passes, for example from a flag on its command line;
2. the environment: ``DO_NOT_TRACK`` and the app's own ``<PREFIX>_DO_NOT_TRACK``. Either of them can opt out; every
   value but ``0`` and ``false`` does. Only the app's own can opt in, because consent is given to one app.
   ``DO_NOT_TRACK=0`` is the same as no variable, so it never permits anything that the sources below forbid;
3. the choice stored by `tacho usage on|local|off`; unreadable counts as off;
4. CI and machines that are configured to stay offline: off;
5. the app's policy.

An opt-out inherited from the parent process also applies to 2-5; the stricter one wins.

`ConsentGate` answers while the program runs. From the decision on, consent can only shrink: the user may run
`tacho usage off` in another terminal, or delete the recorded events.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal, NamedTuple, get_args

from tachograph.exceptions import ConfigError, did_you_mean
from tachograph.usage._folder import Mode, parse_mode, stored_choice

if TYPE_CHECKING:
    from tachograph.usage._spool import Spool

__all__ = [
    "ChoiceLike",
    "ConsentGate",
    "Decision",
    "Policy",
    "check_policy",
    "decide",
    "inherited_choice_variable",
    "is_switch_on",
    "parse_policy",
    "policy_text",
    "stricter",
]

Policy = Literal["opt-in", "local", "opt-out"]
ChoiceLike = Mode | bool | None

_POLICIES: dict[Policy, tuple[Mode, str]] = {
    "opt-in": ("off", "to record nothing until you opt in"),
    "local": ("local", "to record on this machine and send nothing"),
    "opt-out": ("on", "to send until you opt out"),
}
_YES = {"1", "true", "yes", "on"}
_NO = {"0", "false"}
_UNSET = {"", "0", "false", "no", "off"}

_CI_VARIABLES = (
    "CI", "CONTINUOUS_INTEGRATION", "GITHUB_ACTIONS", "GITLAB_CI", "BUILDKITE", "CIRCLECI", "TRAVIS", "TF_BUILD",
    "JENKINS_URL", "TEAMCITY_VERSION", "CODEBUILD_BUILD_ID", "DRONE", "APPVEYOR",
)  # fmt: skip
_OFFLINE_VARIABLES = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_DATASETS_OFFLINE", "HF_HUB_DISABLE_TELEMETRY")


class Decision(NamedTuple):
    """The mode of an app, and why it has this mode."""

    mode: Mode
    reason: str
    source: Literal["choice", "environment", "stored", "circumstance", "policy"]

    @property
    def is_explicit(self) -> bool:
        """Whether the user decided, and not a policy or a circumstance."""
        return self.source in {"choice", "environment", "stored"}


class ConsentGate:
    """The consent for one app at this moment. The sender asks it before every write and every send.

    Args:
        app: name of the app.
        decision: the decision made when the app was configured.
    """

    def __init__(self, app: str, decision: Decision) -> None:
        self._app = app
        self._decision = decision
        self._is_withdrawn = False

    def mode(self) -> Mode:
        """Return the current mode: the decision, or a stored choice that is stricter by now."""
        mode = self._decision.mode
        # A flag and the environment hold for this program, whatever is stored.
        if self._decision.source not in {"choice", "environment"}:
            choice = stored_choice(self._app)
            mode = mode if choice is None else stricter(mode, choice.mode)
        return stricter(mode, "local") if self._is_withdrawn else mode

    def allows(self, spool: Spool) -> bool:
        """Return whether the events of a file may leave the machine now."""
        return spool.is_sendable and self.mode() == "on"

    def withdraw(self) -> None:
        """Send nothing from now on: the user held back or deleted events of this process."""
        self._is_withdrawn = True


def decide(
    app: str, env_prefix: str, policy: Policy, *, choice: ChoiceLike = None, environ: Mapping[str, str] | None = None
) -> Decision:
    """Decide the mode of an app by choice, environment, stored choice, circumstances or policy: the first that is set.

    Args:
        app: name of the app.
        env_prefix: prefix of its own environment variable.
        policy: the policy of the app, for users who made no choice.
        choice: the choice that the program passes, for example from a flag on its command line.
        environ: the environment variables; by default `os.environ`.

    Raises:
        ConfigError: if the choice is invalid.
    """
    environ = os.environ if environ is None else environ
    if choice is not None:
        return Decision(parse_mode(choice), "set by the program", "choice")
    decision = _decide(app, env_prefix, policy, environ)
    inherited_choice = environ.get(inherited_choice_variable(app))
    # Unknown values count as off.
    if inherited_choice is not None:
        mode = stricter(decision.mode, "local" if inherited_choice == "local" else "off")
        if mode != decision.mode:
            return Decision(mode, "inherited from the program that started this one", "choice")
    return decision


def _decide(app: str, env_prefix: str, policy: Policy, environ: Mapping[str, str]) -> Decision:
    app_variable = f"{env_prefix}_DO_NOT_TRACK"
    for name, remedy in (
        (app_variable, "use 0 or false to opt in"),
        ("DO_NOT_TRACK", "unset it to let other sources decide"),
    ):
        text = environ.get(name, "0").strip().lower()
        if text in _YES:
            return Decision("off", f"{name} is set to {text}", "environment")
        if text not in _NO:
            return Decision("off", f"{name} is set to an unknown value, which counts as 1; {remedy}", "environment")
    if app_variable in environ:
        return Decision("on", f"{app_variable} is set to 0 or false", "environment")
    choice = stored_choice(app)
    if choice is not None:
        return Decision(choice.mode, choice.reason, "stored")
    for names, circumstance in (
        (_CI_VARIABLES, "this looks like CI"),
        (_OFFLINE_VARIABLES, "this machine is configured to stay offline"),
    ):
        for name in names:
            if is_switch_on(environ, name):
                return Decision("off", f"{circumstance}: {name} is set", "circumstance")
    return Decision(_POLICIES[policy][0], policy_text(app, policy), "policy")


def policy_text(app: str, policy: Policy) -> str:
    """Describe the policy of an app, which applies if the user made no choice."""
    return f"the policy of {app} is {_POLICIES[policy][1]}"


def inherited_choice_variable(app: str) -> str:
    """Return the environment variable by which a program passes an opt-out to its child processes."""
    return f"TACHO_USAGE_CHOICE_{app.replace('-', '_').upper()}"


def is_switch_on(environ: Mapping[str, str], name: str) -> bool:
    """Return whether a variable is set to anything but an empty text, 0, false, no or off."""
    return environ.get(name, "").strip().lower() not in _UNSET


def stricter(first: Mode, second: Mode) -> Mode:
    """Return the mode that reveals less."""
    return min(first, second, key=get_args(Mode).index)


def check_policy(policy: str) -> Policy:
    """Return a valid policy.

    Raises:
        ConfigError: if there is no such policy.
    """
    valid_policy = parse_policy(policy)
    if valid_policy is None:
        names = get_args(Policy)
        raise ConfigError(f"consent={policy!r}: expected one of {', '.join(names)}{did_you_mean(str(policy), names)}")
    return valid_policy


def parse_policy(policy: object) -> Policy | None:
    """Return the policy of this name, None if there is none."""
    return next((valid_policy for valid_policy in get_args(Policy) if valid_policy == policy), None)
