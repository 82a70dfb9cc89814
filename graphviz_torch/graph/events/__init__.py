"""Events: facts about the program that no single node shows. Each kind of event has a class.

Every event contains a source line of the user's code, the ids of the nodes that it concerns, and
the number of times that it happened at this line.
"""

from __future__ import annotations

from .code import (
    IgnoredResult,
    NameKind,
    ResultOnContext,
    UnusedName,
)
from .compiled import (
    BreakingCall,
    GraphBreak,
    Recompilation,
    SkippedFunction,
)
from .data import (
    LossTarget,
    PaddingUse,
    RepeatedBatch,
    RepeatKind,
    TargetKind,
    TokenShift,
    UsedPadding,
)
from .forwards import (
    DiscardedForward,
    ReferenceForward,
    RepeatedForward,
    RetainedForward,
    UnreadArgument,
    UnusedModule,
)
from .gradients import (
    ClipMoment,
    DiscardedGradients,
    GradientClearing,
    GradientClip,
    GradientRead,
    OverwrittenSavedTensor,
    UnusedGradients,
    WrongGradient,
)
from .ineffective_calls import (
    AnyIneffectiveCall,
)
from .leaves import (
    AttributeAssignment,
    DataAssignment,
    Holder,
    LeafBackward,
    NewLeaves,
    RepeatedLayer,
    UnregisteredParameters,
)
from .losses import (
    Broadcast,
    ConstantLoss,
    ConstantTerm,
    LossCall,
    SelfDifference,
    UnchangingTerm,
    UnusedSum,
)
from .means import (
    AnyMean,
)
from .modes import (
    DropoutSwitchedOff,
    EvalMode,
    RedrawnDropout,
    TrainModeForward,
)
from .optimizers import (
    CopiedValues,
    EarlySchedulerStep,
    MixedLosses,
    OptimizerStep,
    OverwrittenWeights,
    ParameterFreeze,
    SelfCopy,
    StaleBuffers,
    StalledTraining,
    SymmetricRows,
    UnchangedParameters,
    UnevenAccumulation,
)
from .values import (
    NonfiniteValue,
    Origin,
)
from .wrappers import (
    CollectiveInGraph,
    UnusedInWrapper,
    WrapperBypass,
)

__all__ = [
    "AttributeAssignment",
    "BreakingCall",
    "Broadcast",
    "ClipMoment",
    "CollectiveInGraph",
    "ConstantLoss",
    "ConstantTerm",
    "CopiedValues",
    "DataAssignment",
    "DiscardedForward",
    "DiscardedGradients",
    "DropoutSwitchedOff",
    "EarlySchedulerStep",
    "EvalMode",
    "Event",
    "GradientClearing",
    "GradientClip",
    "GradientRead",
    "GraphBreak",
    "Holder",
    "IgnoredResult",
    "LeafBackward",
    "LossCall",
    "LossTarget",
    "MixedLosses",
    "NameKind",
    "NewLeaves",
    "NonfiniteValue",
    "OptimizerStep",
    "Origin",
    "OverwrittenSavedTensor",
    "OverwrittenWeights",
    "PaddingUse",
    "ParameterFreeze",
    "Recompilation",
    "RedrawnDropout",
    "ReferenceForward",
    "RepeatKind",
    "RepeatedBatch",
    "RepeatedForward",
    "RepeatedLayer",
    "ResultOnContext",
    "RetainedForward",
    "SelfCopy",
    "SelfDifference",
    "SkippedFunction",
    "StaleBuffers",
    "StalledTraining",
    "SymmetricRows",
    "TargetKind",
    "TokenShift",
    "TrainModeForward",
    "UnchangedParameters",
    "UnchangingTerm",
    "UnevenAccumulation",
    "UnreadArgument",
    "UnregisteredParameters",
    "UnusedGradients",
    "UnusedInWrapper",
    "UnusedModule",
    "UnusedName",
    "UnusedSum",
    "UsedPadding",
    "WrapperBypass",
    "WrongGradient",
]

Event = (
    AttributeAssignment
    | Broadcast
    | ConstantLoss
    | ConstantTerm
    | CopiedValues
    | DataAssignment
    | DiscardedForward
    | DiscardedGradients
    | DropoutSwitchedOff
    | IgnoredResult
    | EarlySchedulerStep
    | EvalMode
    | GradientClearing
    | GradientClip
    | GradientRead
    | GraphBreak
    | RetainedForward
    | LeafBackward
    | LossCall
    | LossTarget
    | MixedLosses
    | NewLeaves
    | NonfiniteValue
    | OptimizerStep
    | OverwrittenSavedTensor
    | OverwrittenWeights
    | ParameterFreeze
    | ResultOnContext
    | SelfCopy
    | Recompilation
    | RedrawnDropout
    | RepeatedBatch
    | ReferenceForward
    | RepeatedForward
    | RepeatedLayer
    | SelfDifference
    | SkippedFunction
    | StaleBuffers
    | StalledTraining
    | SymmetricRows
    | TokenShift
    | TrainModeForward
    | UnchangedParameters
    | UnchangingTerm
    | UnregisteredParameters
    | UnevenAccumulation
    | UnreadArgument
    | UnusedGradients
    | UnusedInWrapper
    | UnusedModule
    | UnusedName
    | UsedPadding
    | UnusedSum
    | CollectiveInGraph
    | WrapperBypass
    | WrongGradient
    | AnyIneffectiveCall
    | AnyMean
)
