from __future__ import annotations

import subprocess
import sys

import hivemem


def test_the_public_names_are_these() -> None:
    public = """
        Agent AgentInfo AlreadyExists AppendCondition Appended AttributeOperator AttributePredicate
        AttributeValue Attributes AwayReport Batch Claim ClaimHeld Client Closed ConditionFailed Conflict
        ConnectionFailed CursorConflict CursorDiverged CursorExpired CursorForeign CursorMalformed
        CursorNotFound DataLoss DatabaseUnavailable DeadlineExceeded Decision Draining EmbedderUnavailable
        Episode EpisodeErased EpisodeIdReused EpisodeNotFound EpisodeWithNeighbours Expectation FactChange
        FactNotFound FailedPrecondition FenceStale FieldViolation Filter Follower HivememError IndexBehind IndexStats
        InternalError InvalidArgument InvalidField LogRecord Message MessageRole ModelUnknown
        NamedCursor NamespaceDamaged NamespaceExists NamespaceInfo NamespaceNotFound NamespaceSettings NewDecision
        NewEpisode NewThread NoStream NotFound Omission OpenThread OperationNotFound OutOfRange Overloaded
        PageTokenMalformed PartialDuplicate PendingAppend PermissionDenied PlanProgress PositionRange Presence
        QuotaExceeded QuotaSettings RecordKind RedactionSettings Removal RemovalReason ResourceExhausted
        Resumed RetentionSettings Revision RevisionConflict ScoreExplanation SearchHit SearchOptions
        SearchResult ServerStats Session SessionClosed SessionExists SessionInfo SessionNotFound
        SessionState SessionSummary Shortfall SlowConsumer StandingDecision Start Stats StorageFull
        StreamExists Subscription Thread ThreadEvent ThreadEventType ThreadNotFound ThreadOrder
        ThreadReference ThreadState TimeRange TooLarge Unauthenticated Unavailable Unimplemented
        VectorInvalid VersionConflict Writer WrongThreadState follow uuid7
    """
    assert hivemem.__all__ == public.split()


def test_every_public_name_is_there() -> None:
    assert [name for name in hivemem.__all__ if not hasattr(hivemem, name)] == []


def test_a_light_install_needs_no_extra() -> None:
    extras = ("typer", "rich", "openai", "tiktoken", "psycopg", "sqlalchemy", "numpy", "hivemem_server")
    code = f"import hivemem, sys; print([name for name in {extras} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
