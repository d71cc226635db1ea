//! Inception v3: "Rethinking the Inception Architecture for Computer Vision", Szegedy, Vanhoucke, Ioffe, Shlens, Wojna,
//! 2015, arXiv:1512.00567. As in `keras.applications.InceptionV3`: no biases, batch norm without a scale. Layers carry
//! the names that Keras counts out.

use crate::{BatchNorm, Builder, Conv2d, Dense, Graph, NodeId, Shape, ShapeError, Window};

const NORM: BatchNorm = BatchNorm { scale: false, ..BatchNorm::KERAS };

/// Filters and window of a convolution with batch norm and ReLU.
type Step = (usize, (usize, usize));

pub(super) fn build(input: Shape, classes: usize) -> Result<Graph, ShapeError> {
    let (b, x) = Builder::new("inception_v3", input, classes)?;
    let mut net = Net { b, convs: 0, max_pools: 0, avg_pools: 0 };
    let x = net.conv(x, Conv2d::k(3, 3).out(32).stride(2))?;
    let x = net.conv(x, Conv2d::k(3, 3).out(32))?;
    let x = net.conv(x, Conv2d::k(3, 3).out(64).same())?;
    let x = net.max_pool(x)?;
    let x = net.conv(x, Conv2d::k(1, 1).out(80))?;
    let x = net.conv(x, Conv2d::k(3, 3).out(192))?;
    let mut x = net.max_pool(x)?;
    for (name, pooled) in [("mixed0", 32), ("mixed1", 64), ("mixed2", 64)] {
        x = net.add_block_35(name, x, pooled)?;
    }
    x = net.reduce_to_17("mixed3", x)?;
    for (name, narrow) in [("mixed4", 128), ("mixed5", 160), ("mixed6", 160), ("mixed7", 192)] {
        x = net.add_block_17(name, x, narrow)?;
    }
    x = net.reduce_to_8("mixed8", x)?;
    for names in [["mixed9_0", "concatenate", "mixed9"], ["mixed9_1", "concatenate_1", "mixed10"]] {
        x = net.add_block_8(names, x)?;
    }
    let mut b = net.b;
    let x = b.global_avg_pool("avg_pool", x);
    let x = b.dense("predictions", x, Dense::to(classes))?;
    b.softmax_cross_entropy("loss", x)
}

/// The builder, and how many layers of a kind there are: Keras names by counting.
struct Net {
    b: Builder,
    convs: usize,
    max_pools: usize,
    avg_pools: usize,
}

impl Net {
    /// 35x35 maps at the paper's input.
    fn add_block_35(&mut self, name: &str, x: NodeId, pooled: usize) -> Result<NodeId, ShapeError> {
        let single = self.branch(x, &[(64, (1, 1))])?;
        let five = self.branch(x, &[(48, (1, 1)), (64, (5, 5))])?;
        let double = self.branch(x, &[(64, (1, 1)), (96, (3, 3)), (96, (3, 3))])?;
        let pool = self.pool_branch(x, pooled)?;
        self.b.concat(name, &[single, five, double, pool])
    }

    fn reduce_to_17(&mut self, name: &str, x: NodeId) -> Result<NodeId, ShapeError> {
        let single = self.conv(x, Conv2d::k(3, 3).out(384).stride(2))?;
        let double = self.branch(x, &[(64, (1, 1)), (96, (3, 3))])?;
        let double = self.conv(double, Conv2d::k(3, 3).out(96).stride(2))?;
        let pool = self.max_pool(x)?;
        self.b.concat(name, &[single, double, pool])
    }

    /// 17x17 maps at the paper's input; 7x7 windows factorised.
    fn add_block_17(&mut self, name: &str, x: NodeId, narrow: usize) -> Result<NodeId, ShapeError> {
        let (row, column) = ((1, 7), (7, 1));
        let single = self.branch(x, &[(192, (1, 1))])?;
        let seven = self.branch(x, &[(narrow, (1, 1)), (narrow, row), (192, column)])?;
        let double = self
            .branch(x, &[(narrow, (1, 1)), (narrow, column), (narrow, row), (narrow, column), (192, row)])?;
        let pool = self.pool_branch(x, 192)?;
        self.b.concat(name, &[single, seven, double, pool])
    }

    fn reduce_to_8(&mut self, name: &str, x: NodeId) -> Result<NodeId, ShapeError> {
        let three = self.branch(x, &[(192, (1, 1))])?;
        let three = self.conv(three, Conv2d::k(3, 3).out(320).stride(2))?;
        let seven = self.branch(x, &[(192, (1, 1)), (192, (1, 7)), (192, (7, 1))])?;
        let seven = self.conv(seven, Conv2d::k(3, 3).out(192).stride(2))?;
        let pool = self.max_pool(x)?;
        self.b.concat(name, &[three, seven, pool])
    }

    /// 8x8 maps at the paper's input; `names` are those of the two inner joins and of the block.
    fn add_block_8(&mut self, names: [&str; 3], x: NodeId) -> Result<NodeId, ShapeError> {
        let single = self.branch(x, &[(320, (1, 1))])?;
        let three = self.branch(x, &[(384, (1, 1))])?;
        let three = self.split(names[0], three)?;
        let double = self.branch(x, &[(448, (1, 1)), (384, (3, 3))])?;
        let double = self.split(names[1], double)?;
        let pool = self.pool_branch(x, 192)?;
        self.b.concat(names[2], &[single, three, double, pool])
    }

    /// A 1x3 and a 3x1 side by side.
    fn split(&mut self, name: &str, x: NodeId) -> Result<NodeId, ShapeError> {
        let row = self.branch(x, &[(384, (1, 3))])?;
        let column = self.branch(x, &[(384, (3, 1))])?;
        self.b.concat(name, &[row, column])
    }

    fn branch(&mut self, x: NodeId, steps: &[Step]) -> Result<NodeId, ShapeError> {
        steps.iter().try_fold(x, |x, &(out, (h, w))| self.conv(x, Conv2d::k(h, w).out(out).same()))
    }

    fn pool_branch(&mut self, x: NodeId, out: usize) -> Result<NodeId, ShapeError> {
        let name = number("average_pooling2d", self.avg_pools);
        self.avg_pools += 1;
        let x = self.b.avg_pool(&name, x, Window::k(3, 3).same())?;
        self.branch(x, &[(out, (1, 1))])
    }

    fn max_pool(&mut self, x: NodeId) -> Result<NodeId, ShapeError> {
        let name = number("max_pooling2d", self.max_pools);
        self.max_pools += 1;
        self.b.max_pool(&name, x, Window::k(3, 3).stride(2))
    }

    fn conv(&mut self, x: NodeId, conv: Conv2d) -> Result<NodeId, ShapeError> {
        let index = self.convs;
        self.convs += 1;
        let x = self.b.conv(&number("conv2d", index), x, conv)?;
        let x = self.b.batch_norm(&number("batch_normalization", index), x, NORM);
        Ok(self.b.relu(&number("activation", index), x))
    }
}

/// Keras's automatic name: the first of a kind has no number.
fn number(kind: &str, index: usize) -> String {
    if index == 0 { kind.to_owned() } else { format!("{kind}_{index}") }
}
