//! From the bytes of a file to pixels.

use std::io::Cursor;

use png::{ColorType, Transformations};
use zune_core::bytestream::ZCursor;
use zune_core::colorspace::ColorSpace;
use zune_core::options::DecoderOptions;
use zune_jpeg::JpegDecoder;

use crate::data::MAX_SIDE;

/// Most pixels of a picture: a small file may claim a size that fills all memory.
const MAX_PIXELS: usize = 1 << 26;

/// Decodes pictures one at a time, in memory that it keeps.
#[derive(Default)]
pub struct Decoder {
    pixels: Vec<u8>,
    /// Pixels of a PNG that is not RGB already.
    raw: Vec<u8>,
}

impl Decoder {
    /// Decodes a file, whatever its name says it is; its height and width, or what is wrong with it.
    pub fn decode(&mut self, bytes: &[u8]) -> Result<(usize, usize), String> {
        if bytes.starts_with(&[0xff, 0xd8]) {
            self.decode_jpeg(bytes)
        } else if bytes.starts_with(b"\x89PNG") {
            self.decode_png(bytes)
        } else {
            Err("it is neither JPEG nor PNG".into())
        }
    }

    /// The pixels of the last picture, red, green and blue side by side.
    pub fn pixels(&self) -> &[u8] {
        &self.pixels
    }

    fn decode_jpeg(&mut self, bytes: &[u8]) -> Result<(usize, usize), String> {
        // Strict, or a file that was cut short would be a picture with a grey end.
        let options = DecoderOptions::default()
            .jpeg_set_out_colorspace(ColorSpace::RGB)
            .set_max_width(MAX_SIDE)
            .set_max_height(MAX_SIDE)
            .set_strict_mode(true);
        let broken = |error| format!("it is not a good JPEG: {error}");
        let mut decoder = JpegDecoder::new_with_options(ZCursor::new(bytes), options);
        decoder.decode_headers().map_err(broken)?;
        let (width, height) = decoder.dimensions().expect("invariant: headers are decoded");
        self.make_room(height, width)?;
        decoder.decode_into(&mut self.pixels).map_err(broken)?;
        Ok((height, width))
    }

    fn decode_png(&mut self, bytes: &[u8]) -> Result<(usize, usize), String> {
        let broken = |error| format!("it is not a good PNG: {error}");
        let mut decoder = png::Decoder::new(Cursor::new(bytes));
        decoder.set_transformations(Transformations::normalize_to_color8());
        let mut reader = decoder.read_info().map_err(broken)?;
        let (width, height) = (reader.info().width as usize, reader.info().height as usize);
        self.make_room(height, width)?;
        let (colour, _) = reader.output_color_type();
        if colour == ColorType::Rgb {
            reader.next_frame(&mut self.pixels).map_err(broken)?;
            return Ok((height, width));
        }
        let samples = colour.samples();
        self.raw.resize(height * width * samples, 0);
        reader.next_frame(&mut self.raw).map_err(broken)?;
        for (pixel, raw) in self.pixels.as_chunks_mut().0.iter_mut().zip(self.raw.chunks_exact(samples)) {
            *pixel = match *raw {
                [r, g, b, _] => [r, g, b],
                [grey, ..] => [grey; 3],
                [] => unreachable!("a pixel has samples"),
            };
        }
        Ok((height, width))
    }

    fn make_room(&mut self, height: usize, width: usize) -> Result<(), String> {
        if height.max(width) > MAX_SIDE || height * width > MAX_PIXELS || height * width == 0 {
            return Err(format!("it claims {width}x{height} pixels"));
        }
        self.pixels.resize(height * width * 3, 0);
        Ok(())
    }
}
