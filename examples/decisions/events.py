"""What can happen while people decide: every event type that the modules agree on.

This application raises those of a session. The others are there for the modules that raise or
handle them, so that all spell them alike. A class that changes its fields gets `version=2`.
"""

from dataclasses import dataclass
from uuid import UUID

from outrider import DomainEvent


@dataclass(frozen=True, kw_only=True)
class SessionCreated(DomainEvent, type="session.created"):
    session_id: UUID
    user_id: str
    title: str


@dataclass(frozen=True, kw_only=True)
class SessionRenamed(DomainEvent, type="session.renamed"):
    session_id: UUID
    title: str


@dataclass(frozen=True, kw_only=True)
class SessionArchived(DomainEvent, type="session.archived"):
    session_id: UUID


@dataclass(frozen=True, kw_only=True)
class CycleCreated(DomainEvent, type="cycle.created"):
    """A cycle is one pass through the steps of a decision."""

    cycle_id: UUID
    session_id: UUID


@dataclass(frozen=True, kw_only=True)
class CycleBranched(DomainEvent, type="cycle.branched"):
    cycle_id: UUID
    branched_from: UUID


@dataclass(frozen=True, kw_only=True)
class CycleArchived(DomainEvent, type="cycle.archived"):
    cycle_id: UUID


@dataclass(frozen=True, kw_only=True)
class ComponentStarted(DomainEvent, type="component.started"):
    """A component is one step of a cycle, such as its objectives."""

    component_id: UUID
    cycle_id: UUID
    kind: str


@dataclass(frozen=True, kw_only=True)
class ComponentCompleted(DomainEvent, type="component.completed"):
    component_id: UUID


@dataclass(frozen=True, kw_only=True)
class ComponentRevised(DomainEvent, type="component.revised"):
    component_id: UUID
    revision: int


@dataclass(frozen=True, kw_only=True)
class ConversationStarted(DomainEvent, type="conversation.started"):
    conversation_id: UUID
    component_id: UUID


@dataclass(frozen=True, kw_only=True)
class ConversationMessageSent(DomainEvent, type="conversation.message_sent"):
    """Who wants the words asks for the message: they are nobody else's business."""

    conversation_id: UUID
    message_id: UUID


@dataclass(frozen=True, kw_only=True)
class MembershipCreated(DomainEvent, type="membership.created"):
    membership_id: UUID
    user_id: str
    tier: str


@dataclass(frozen=True, kw_only=True)
class MembershipUpgraded(DomainEvent, type="membership.upgraded"):
    membership_id: UUID
    tier: str


@dataclass(frozen=True, kw_only=True)
class MembershipCancelled(DomainEvent, type="membership.cancelled"):
    membership_id: UUID
