//! Inception v4: "Inception-v4, Inception-ResNet and the Impact of Residual Connections on Learning", Szegedy, Ioffe,
//! Vanhoucke, Alemi, 2016, arXiv:1602.07261. As in timm's `inception_v4`, whose head has a dropout of rate 0, left out
//! here. Layers carry timm's module paths; a join carries its block's.

use crate::{BatchNorm, Builder, Conv2d, Dense, Graph, Init, NodeId, Shape, ShapeError, Window};

const NORM: BatchNorm = BatchNorm { epsilon: 1e-3, ..BatchNorm::TORCH };

pub(super) fn build(input: Shape, classes: usize) -> Result<Graph, ShapeError> {
    let (b, x) = Builder::new("inception_v4", input, classes)?;
    let mut net = Net { b };
    let mut x = net.conv("features.0", x, conv(32, 3, 3).stride(2))?;
    x = net.conv("features.1", x, conv(32, 3, 3))?;
    x = net.conv("features.2", x, conv(64, 3, 3).same())?;
    let blocks: [(Block, usize); 8] = [
        (Net::add_mixed_3a, 1),
        (Net::add_mixed_4a, 1),
        (Net::add_mixed_5a, 1),
        (Net::add_inception_a, 4),
        (Net::add_reduction_a, 1),
        (Net::add_inception_b, 7),
        (Net::add_reduction_b, 1),
        (Net::add_inception_c, 3),
    ];
    let all = blocks.into_iter().flat_map(|(block, times)| std::iter::repeat_n(block, times));
    for (index, block) in (3..).zip(all) {
        x = block(&mut net, &format!("features.{index}"), x)?;
    }
    let mut b = net.b;
    let x = b.global_avg_pool("global_pool", x);
    let x = b.dense("last_linear", x, Dense::to(classes))?;
    b.softmax_cross_entropy("loss", x)
}

type Block = fn(&mut Net, &str, NodeId) -> Result<NodeId, ShapeError>;

struct Net {
    b: Builder,
}

impl Net {
    fn add_mixed_3a(&mut self, path: &str, x: NodeId) -> Result<NodeId, ShapeError> {
        let pool = self.max_pool(&format!("{path}.maxpool"), x)?;
        let halved = self.conv(&format!("{path}.conv"), x, conv(96, 3, 3).stride(2))?;
        self.b.concat(path, &[pool, halved])
    }

    fn add_mixed_4a(&mut self, path: &str, x: NodeId) -> Result<NodeId, ShapeError> {
        let short = self.chain(&format!("{path}.branch0"), x, &[conv(64, 1, 1), conv(96, 3, 3)])?;
        let steps = [conv(64, 1, 1), conv(64, 1, 7).same(), conv(64, 7, 1).same(), conv(96, 3, 3)];
        let long = self.chain(&format!("{path}.branch1"), x, &steps)?;
        self.b.concat(path, &[short, long])
    }

    fn add_mixed_5a(&mut self, path: &str, x: NodeId) -> Result<NodeId, ShapeError> {
        let halved = self.conv(&format!("{path}.conv"), x, conv(192, 3, 3).stride(2))?;
        let pool = self.max_pool(&format!("{path}.maxpool"), x)?;
        self.b.concat(path, &[halved, pool])
    }

    fn add_inception_a(&mut self, path: &str, x: NodeId) -> Result<NodeId, ShapeError> {
        let three = conv(96, 3, 3).same();
        let single = self.conv(&format!("{path}.branch0"), x, conv(96, 1, 1))?;
        let one = self.chain(&format!("{path}.branch1"), x, &[conv(64, 1, 1), three])?;
        let two = self.chain(&format!("{path}.branch2"), x, &[conv(64, 1, 1), three, three])?;
        let pool = self.pool_branch(&format!("{path}.branch3"), x, 96)?;
        self.b.concat(path, &[single, one, two, pool])
    }

    fn add_reduction_a(&mut self, path: &str, x: NodeId) -> Result<NodeId, ShapeError> {
        let single = self.conv(&format!("{path}.branch0"), x, conv(384, 3, 3).stride(2))?;
        let steps = [conv(192, 1, 1), conv(224, 3, 3).same(), conv(256, 3, 3).stride(2)];
        let double = self.chain(&format!("{path}.branch1"), x, &steps)?;
        let pool = self.max_pool(&format!("{path}.branch2"), x)?;
        self.b.concat(path, &[single, double, pool])
    }

    fn add_inception_b(&mut self, path: &str, x: NodeId) -> Result<NodeId, ShapeError> {
        let (row, column) = (|out| conv(out, 1, 7).same(), |out| conv(out, 7, 1).same());
        let single = self.conv(&format!("{path}.branch0"), x, conv(384, 1, 1))?;
        let one = self.chain(&format!("{path}.branch1"), x, &[conv(192, 1, 1), row(224), column(256)])?;
        let steps = [conv(192, 1, 1), column(192), row(224), column(224), row(256)];
        let two = self.chain(&format!("{path}.branch2"), x, &steps)?;
        let pool = self.pool_branch(&format!("{path}.branch3"), x, 128)?;
        self.b.concat(path, &[single, one, two, pool])
    }

    fn add_reduction_b(&mut self, path: &str, x: NodeId) -> Result<NodeId, ShapeError> {
        let steps = [conv(192, 1, 1), conv(192, 3, 3).stride(2)];
        let three = self.chain(&format!("{path}.branch0"), x, &steps)?;
        let steps =
            [conv(256, 1, 1), conv(256, 1, 7).same(), conv(320, 7, 1).same(), conv(320, 3, 3).stride(2)];
        let seven = self.chain(&format!("{path}.branch1"), x, &steps)?;
        let pool = self.max_pool(&format!("{path}.branch2"), x)?;
        self.b.concat(path, &[three, seven, pool])
    }

    fn add_inception_c(&mut self, path: &str, x: NodeId) -> Result<NodeId, ShapeError> {
        let single = self.conv(&format!("{path}.branch0"), x, conv(256, 1, 1))?;

        let one = self.conv(&format!("{path}.branch1_0"), x, conv(384, 1, 1))?;
        let row = self.conv(&format!("{path}.branch1_1a"), one, conv(256, 1, 3).same())?;
        let column = self.conv(&format!("{path}.branch1_1b"), one, conv(256, 3, 1).same())?;
        let one = self.b.concat(&format!("{path}.branch1"), &[row, column])?;

        let two = self.conv(&format!("{path}.branch2_0"), x, conv(384, 1, 1))?;
        let two = self.conv(&format!("{path}.branch2_1"), two, conv(448, 3, 1).same())?;
        let two = self.conv(&format!("{path}.branch2_2"), two, conv(512, 1, 3).same())?;
        let row = self.conv(&format!("{path}.branch2_3a"), two, conv(256, 1, 3).same())?;
        let column = self.conv(&format!("{path}.branch2_3b"), two, conv(256, 3, 1).same())?;
        let two = self.b.concat(&format!("{path}.branch2"), &[row, column])?;

        let pool = self.pool_branch(&format!("{path}.branch3"), x, 256)?;
        self.b.concat(path, &[single, one, two, pool])
    }

    fn pool_branch(&mut self, path: &str, x: NodeId, out: usize) -> Result<NodeId, ShapeError> {
        let x = self.b.avg_pool(&format!("{path}.0"), x, Window::k(3, 3).same())?;
        self.conv(&format!("{path}.1"), x, conv(out, 1, 1))
    }

    fn max_pool(&mut self, path: &str, x: NodeId) -> Result<NodeId, ShapeError> {
        self.b.max_pool(path, x, Window::k(3, 3).stride(2))
    }

    fn chain(&mut self, path: &str, x: NodeId, steps: &[Conv2d]) -> Result<NodeId, ShapeError> {
        let mut steps = steps.iter().enumerate();
        steps.try_fold(x, |x, (index, &step)| self.conv(&format!("{path}.{index}"), x, step))
    }

    /// Convolution, batch norm, ReLU.
    fn conv(&mut self, path: &str, x: NodeId, conv: Conv2d) -> Result<NodeId, ShapeError> {
        let x = self.b.conv(&format!("{path}.conv"), x, conv)?;
        let x = self.b.batch_norm(&format!("{path}.bn"), x, NORM);
        Ok(self.b.relu(&format!("{path}.bn.act"), x))
    }
}

const fn conv(out: usize, h: usize, w: usize) -> Conv2d {
    Conv2d::k(h, w).out(out).init(Init::He)
}
