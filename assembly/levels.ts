import { CENTER_PAIRS, SIGNED_CENTERS, THRESHOLDS } from './arena'

/*
 * The Lloyd–Max quantizer of the codec (`LEVELS` there, the same numbers), laid out for the lanes that read it.
 *
 *   THRESHOLDS     | t1 t1 t1 t1 | t2 t2 t2 t2 | …    seven vectors of f32
 *   CENTER_PAIRS   | c[i] c[j] |                      64 vectors of f64, number i + 8 j
 *   SIGNED_CENTERS | −c[0] … −c[7] | c[0] … c[7] |    f32, by three index bits and the sign
 */
const EDGES = memory.data<f32>([
  0.08527615885122891, 0.17162243454243387, 0.26026251946178686, 0.35279754578797895, 0.45164666731265546,
  0.5611848546890295, 0.6920913647815115,
])
const CENTERS = memory.data<f64>([
  0.04250866710528162, 0.1280436505971762, 0.2152012184876915, 0.30532382043588224, 0.4002712711400757,
  0.5030220634852353, 0.6193476458928237, 0.7648350836701993,
])
let prepared = false

/** Fills them at first use. */
export function prepareLevels(): void {
  if (prepared) return
  for (let i: usize = 0; i < 7; i++) v128.store(THRESHOLDS + (i << 4), v128.load_splat<u32>(EDGES + (i << 2)))
  for (let j: usize = 0; j < 8; j++) {
    const center = load<f64>(CENTERS + (j << 3))
    store<f32>(SIGNED_CENTERS + (j << 2), <f32>-center)
    store<f32>(SIGNED_CENTERS + (j << 2), <f32>center, 32)
    for (let i: usize = 0; i < 8; i++) {
      const pair = CENTER_PAIRS + ((i + 8 * j) << 4)
      store<f64>(pair, load<f64>(CENTERS + (i << 3)))
      store<f64>(pair, center, 8)
    }
  }
  prepared = true
}
