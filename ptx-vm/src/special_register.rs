//! Special registers of PTX that keep their value while a thread lives: their names and widths. What they read is
//! [`super::ops::special`]'s.
//!
//! Used by the operands' lowering and by `analysis::uniformity`. Must not know a grid.

/// A special register that keeps its value while a thread lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Special {
    Tid(u8),
    Ntid(u8),
    Ctaid(u8),
    Nctaid(u8),
    LaneId,
    WarpId,
    NwarpId,
    SmId,
    NsmId,
    GridId,
    LanemaskEq,
    LanemaskLe,
    LanemaskLt,
    LanemaskGe,
    LanemaskGt,
    DynamicSmemSize,
    TotalSmemSize,
    WarpSize,
    ClusterId(u8),
    NclusterId(u8),
    ClusterCtaid(u8),
    ClusterNctaid(u8),
    ClusterRank,
    ClusterBlocks,
    IsExplicitCluster,
    /// `%envreg1`: the upper half of the address where a cooperative grid meets; 0 for other grids.
    GridHigh,
    /// `%envreg2`: the lower half.
    GridLow,
    /// `%current_graph_exec`: the graph of which the grid is a part, if kernels may launch that; else 0.
    GraphExec,
    /// `%reserved_smem_offset_begin` and the numbered ones: where the system's part of shared memory begins.
    ReservedBegin,
    /// `%reserved_smem_offset_end`
    ReservedEnd,
    /// `%reserved_smem_offset_cap`
    ReservedCap,
}

impl Special {
    /// The register of this name, its component, and its width in bytes. `None` if there is none of it.
    pub(crate) fn named(name: &str, component: Option<char>) -> Option<(Self, u8)> {
        let axis = match component {
            Some('x') => Some(0),
            Some('y') => Some(1),
            Some('z') => Some(2),
            Some(_) | None => None,
        };
        let plain = match (name, axis) {
            ("tid", Some(axis)) => Self::Tid(axis),
            ("ntid", Some(axis)) => Self::Ntid(axis),
            ("ctaid", Some(axis)) => Self::Ctaid(axis),
            ("nctaid", Some(axis)) => Self::Nctaid(axis),
            ("clusterid", Some(axis)) => Self::ClusterId(axis),
            ("nclusterid", Some(axis)) => Self::NclusterId(axis),
            ("cluster_ctaid", Some(axis)) => Self::ClusterCtaid(axis),
            ("cluster_nctaid", Some(axis)) => Self::ClusterNctaid(axis),
            ("cluster_ctarank", None) => Self::ClusterRank,
            ("cluster_nctarank", None) => Self::ClusterBlocks,
            ("is_explicit_cluster", None) => return Some((Self::IsExplicitCluster, 1)),
            ("laneid", None) => Self::LaneId,
            ("warpid", None) => Self::WarpId,
            ("nwarpid", None) => Self::NwarpId,
            ("smid", None) => Self::SmId,
            ("nsmid", None) => Self::NsmId,
            ("current_graph_exec", None) => return Some((Self::GraphExec, 8)),
            ("gridid", None) => return Some((Self::GridId, 8)),
            ("lanemask_eq", None) => Self::LanemaskEq,
            ("lanemask_le", None) => Self::LanemaskLe,
            ("lanemask_lt", None) => Self::LanemaskLt,
            ("lanemask_ge", None) => Self::LanemaskGe,
            ("lanemask_gt", None) => Self::LanemaskGt,
            ("dynamic_smem_size", None) => Self::DynamicSmemSize,
            ("total_smem_size", None) => Self::TotalSmemSize,
            ("WARP_SZ", None) => Self::WarpSize,
            ("envreg1", None) => Self::GridHigh,
            ("envreg2", None) => Self::GridLow,
            (
                "reserved_smem_offset_begin" | "reserved_smem_offset_0" | "reserved_smem_offset_1",
                None,
            ) => Self::ReservedBegin,
            ("reserved_smem_offset_end", None) => Self::ReservedEnd,
            ("reserved_smem_offset_cap", None) => Self::ReservedCap,
            _ => return None,
        };
        Some((plain, 4))
    }

    /// Whether lanes of one block read different values.
    pub(crate) fn varies(self) -> bool {
        matches!(
            self,
            Self::Tid(_)
                | Self::LaneId
                | Self::WarpId
                | Self::LanemaskEq
                | Self::LanemaskLe
                | Self::LanemaskLt
                | Self::LanemaskGe
                | Self::LanemaskGt
        )
    }

    /// Whether blocks of one grid that run one after the other may read different values.
    pub(crate) fn is_of_block(self) -> bool {
        matches!(
            self,
            Self::Ctaid(_)
                | Self::SmId
                | Self::ClusterId(_)
                | Self::ClusterCtaid(_)
                | Self::ClusterRank
        )
    }

    fn code(self) -> u64 {
        let axis = |base: u64, axis: u8| base | u64::from(axis) << 8;
        match self {
            Self::Tid(a) => axis(0, a),
            Self::Ntid(a) => axis(1, a),
            Self::Ctaid(a) => axis(2, a),
            Self::Nctaid(a) => axis(3, a),
            Self::LaneId => 4,
            Self::WarpId => 5,
            Self::NwarpId => 6,
            Self::SmId => 7,
            Self::NsmId => 8,
            Self::GridId => 9,
            Self::LanemaskEq => 10,
            Self::LanemaskLe => 11,
            Self::LanemaskLt => 12,
            Self::LanemaskGe => 13,
            Self::LanemaskGt => 14,
            Self::DynamicSmemSize => 15,
            Self::TotalSmemSize => 16,
            Self::WarpSize => 17,
            Self::ClusterId(a) => axis(18, a),
            Self::NclusterId(a) => axis(19, a),
            Self::ClusterCtaid(a) => axis(25, a),
            Self::ClusterNctaid(a) => axis(26, a),
            Self::ClusterRank => 27,
            Self::ClusterBlocks => 28,
            Self::IsExplicitCluster => 29,
            Self::GridHigh => 20,
            Self::GridLow => 21,
            Self::ReservedBegin => 22,
            Self::ReservedEnd => 23,
            Self::ReservedCap => 24,
            Self::GraphExec => 30,
        }
    }

    /// What [`read_special`](super::ops::special::read_special) takes as `imm`.
    pub(crate) fn imm(self) -> u64 {
        self.code()
    }
}
